"""Where a gang may run: eligible nodes, the allocator and its node assignment."""
