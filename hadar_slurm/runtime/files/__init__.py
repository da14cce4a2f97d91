"""The files of a job that its copies share: tensors, and what each slot ends with."""
