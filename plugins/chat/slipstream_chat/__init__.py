"""Messages of any format as a chat's: what exports, imports and imitation have in common."""
