from . import schedules as schedules
