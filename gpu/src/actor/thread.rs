//! The GPU's thread: blocking work, one piece after the other, behind the runtime's Offload port. Used by the shell.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{self, Sender};

use elastic_runtime::offload::{BlockingJob, Offload};
use futures_util::future::LocalBoxFuture;
use tokio::sync::oneshot;

type JobQueue = Sender<(BlockingJob, oneshot::Sender<()>)>;

/// A thread that starts with the first work and lives as long as the actor; another one takes its place when
/// it is stuck.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuThread {
    queue: Rc<RefCell<Option<JobQueue>>>,
}

impl GpuThread {
    /// Abandons the work under way: the next work gets another thread.
    pub(super) fn leave_behind(&self) {
        self.queue.borrow_mut().take();
    }
}

impl Offload for GpuThread {
    fn start(&self, _label: &'static str, job: BlockingJob) -> LocalBoxFuture<'static, ()> {
        let (done, is_done) = oneshot::channel();
        let mut queue = self.queue.borrow_mut();
        let queue = queue.get_or_insert_with(|| {
            let (queue, work) = mpsc::channel::<(BlockingJob, oneshot::Sender<()>)>();
            let run = move || {
                for (job, done) in work {
                    job();
                    // The caller may have abandoned this thread.
                    let _ = done.send(());
                }
            };
            // Without a thread its queue is closed, and the work reported as not run.
            let _ = std::thread::Builder::new().name("gpu".to_owned()).spawn(run);
            queue
        });
        let _ = queue.send((job, done));
        Box::pin(async move {
            // An error is a thread that is gone: the job has dropped its result's channel then.
            let _ = is_done.await;
        })
    }
}
