"""The parts of the benchmark: each measures one kind of cost and writes its own section."""
