from .corrupt import CORRUPTIONS as CORRUPTIONS
from .corrupt import corrupt as corrupt
from .images import Images as Images
from .images import MemoryImages as MemoryImages
from .load import describe as describe
from .load import load as load
