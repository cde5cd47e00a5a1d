"""The module pickle."""

import pickle
from pickle import Pickler
