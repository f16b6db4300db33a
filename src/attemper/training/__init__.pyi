from .loop import train as train
from .options import Options as Options
from .run import Run as Run
