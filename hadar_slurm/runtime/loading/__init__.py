"""The batches of a data loader, for the steps of a job."""
