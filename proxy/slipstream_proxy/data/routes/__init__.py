"""Routes that aiohttp reads. Not compiled: subclasses of aiohttp's classes cannot be."""
