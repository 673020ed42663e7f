"""What the bridges to language runtimes cost: each beside the runtime's own profiler, and what of it is the runtime's own."""
