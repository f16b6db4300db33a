"""Classifiers of images, built by name: `build("resnet18", image_shape=(3, 32, 32), classes=10)`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
