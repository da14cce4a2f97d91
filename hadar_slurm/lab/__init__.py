"""The laboratory: policies of other systems, trace readers, the study and the demo."""
