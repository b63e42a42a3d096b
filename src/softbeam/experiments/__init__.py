"""Many runs: the tables of the thesis, comparisons, sweeps, the demo, benchmarks."""
