"""What Ray's dashboard says of jobs."""

from pydantic import BaseModel


class DriverInfo(BaseModel):
    """The program of a job."""

    id: str
    node_ip_address: str
    pid: str


class JobDetails(BaseModel):
    """A job."""

    job_id: str | None = None
    submission_id: str | None = None
    status: str | None = None
    entrypoint: str | None = None
    message: str | None = None
    error_type: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    metadata: dict[str, str] | None = None
    runtime_env: dict[str, object] | None = None
    driver_info: DriverInfo | None = None


class JobType(str):
    """How a job was begun."""
