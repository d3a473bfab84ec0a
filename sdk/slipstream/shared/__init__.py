"""What all packages use: files, times, names, tables, waiting."""
