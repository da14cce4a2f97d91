"""Answers to operators' and users' questions, from the journal. Pure."""
