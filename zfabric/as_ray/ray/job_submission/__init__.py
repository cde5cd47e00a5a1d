"""The client of jobs."""

from zfabric.as_ray.absent import attributes
from zfabric.job_submission import JobDetails, JobStatus, JobSubmissionClient

__getattr__ = attributes(__name__)
