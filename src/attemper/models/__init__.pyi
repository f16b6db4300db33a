from .build import NAMES as NAMES
from .build import build as build
from .classifier import Classifier as Classifier
