"""The log: records, segments of them in files, and who writes there."""
