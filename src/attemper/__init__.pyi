from . import data as data
from . import models as models
from .errors import AttemperError as AttemperError
from .gauge.moments import Moments as Moments
from .gauge.rank import numerical_rank as numerical_rank
from .gauge.rank import spectrum as spectrum
from .knob import schedules as schedules
from .knob.losses import Learned as Learned
from .knob.losses import TemperedCrossEntropy as TemperedCrossEntropy
from .knob.softmax import entropy as entropy
from .knob.softmax import softmax as softmax

__version__: str
