"""Run safely on one machine or many: files, signals, processes, grids of cells."""
