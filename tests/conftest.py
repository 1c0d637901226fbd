"""What every test gets: one thread a process, since the suite runs one process a core."""

import torch

torch.set_num_threads(1)
