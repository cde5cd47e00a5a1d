"""Ray's place for its job client: ``from zfabric.job_submission import JobSubmissionClient``."""

from zfabric.util.jobs import JobDetails, JobStatus, JobSubmissionClient

__all__ = ["JobDetails", "JobStatus", "JobSubmissionClient"]
