"""Worker processes on one machine, started and shown as one program."""
