"""Crash-safe checkpoints without a shared disk, for any number of ranks.

checkpoint.save("runs/a", step, model, optimizer, scheduler=scheduler, epoch=3)
loaded = checkpoint.load("runs/a", model, optimizer, scheduler=scheduler)
"""

from ringleader.checkpoint.async_save import async_save
from ringleader.checkpoint.dcp_reader import Reader
from ringleader.checkpoint.dcp_writer import Writer
from ringleader.checkpoint.load import Loaded, load
from ringleader.checkpoint.place_reader import DamagedCheckpoint
from ringleader.checkpoint.planners import LoadPlanner, SavePlanner
from ringleader.checkpoint.resume import Resumable, folder, resume
from ringleader.checkpoint.save import Saved, save

__all__ = [
    "DamagedCheckpoint",
    "LoadPlanner",
    "Loaded",
    "Reader",
    "Resumable",
    "SavePlanner",
    "Saved",
    "Writer",
    "async_save",
    "folder",
    "load",
    "resume",
    "save",
]
