"""DuckDB and PostgreSQL: each as a driver, and nothing of one in the other."""
