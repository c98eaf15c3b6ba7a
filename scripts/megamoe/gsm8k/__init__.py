"""GSM8K through lm-evaluation-harness: offline, resumable, counted."""
