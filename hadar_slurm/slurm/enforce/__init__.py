"""Holds, node lists, requeues, and the record of what hadard has changed.

The strategies make changes, `restore` and `release_all` undo them: as events of `state_machine`,
recorded by `ledger`, sent by `writer`. In which order, and where a borrowed field is added:
docs/architecture.md, "What hadard does to a waiting job".
"""
