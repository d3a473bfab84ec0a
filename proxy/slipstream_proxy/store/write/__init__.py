"""What changes the store: records, what people change, work that is handed out, and time."""
