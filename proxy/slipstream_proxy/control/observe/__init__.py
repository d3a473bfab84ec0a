"""What is counted, who works, and who changed what."""
