//! Refusals of the system that may pass, by themselves or once somebody has mended something. A driver that goes on with a
//! job waits for that, since its workers train on meanwhile. Used by `job_start`, `logging` and the driver's process.

/// Way out if there is no thread to be had.
pub(crate) const MORE_THREADS: &str = "raise the limit of threads (`ulimit -u`, pids.max of the control group, TasksMax= of a unit), or end what has them";

/// Whether an error of the system, by its number, may pass. It does not where it says what stands in a place, or that the
/// place is wrong; a process without descriptors has its limit for life.
pub(crate) const fn may_pass(code: i32) -> bool {
    !matches!(
        code,
        libc::ENOENT
            | libc::ENOTDIR
            | libc::EISDIR
            | libc::ELOOP
            | libc::ENAMETOOLONG
            | libc::EINVAL
            | libc::EEXIST
            | libc::ENOTEMPTY
            | libc::EXDEV
            | libc::EOPNOTSUPP
            | libc::ENOSYS
            | libc::EMFILE
            | libc::ENFILE
    )
}

/// Remedy of a disk's refusal; none if the error need not be one of a disk.
pub(crate) const fn remedy(code: i32) -> Option<&'static str> {
    match code {
        libc::EAGAIN => None,
        libc::ENOSPC | libc::EDQUOT => Some("make room on that disk"),
        libc::EFBIG => Some("files may not become that large here: raise that limit (`ulimit -f`)"),
        libc::EROFS | libc::EACCES | libc::EPERM => {
            Some("make the state directory readable and writable for this user again")
        }
        _ => Some("see what the system says of that disk"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_4_an_error_of_a_disk_may_pass_and_what_stands_in_a_place_stays() {
        let of_disks = [
            libc::EROFS,
            libc::EIO,
            libc::ESTALE,
            libc::ETIMEDOUT,
            libc::ENOTCONN,
            libc::EACCES,
            libc::EPERM,
            libc::ENOSPC,
            libc::EDQUOT,
            libc::EFBIG,
        ];
        for code in of_disks {
            assert!(may_pass(code) && remedy(code).is_some(), "{code}");
        }
        assert!(may_pass(libc::EAGAIN), "a thread may be had later");
        for code in [libc::ENOENT, libc::ENOTDIR, libc::EISDIR, libc::ELOOP, libc::EMFILE] {
            assert!(!may_pass(code), "{code}");
        }
    }
}
