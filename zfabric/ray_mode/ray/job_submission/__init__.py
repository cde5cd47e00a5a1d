"""The client of jobs."""

from zfabric.job_submission import JobDetails, JobStatus, JobSubmissionClient
from zfabric.ray_mode.absent import attributes

__getattr__ = attributes(__name__)
