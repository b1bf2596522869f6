//! The whole path, loader included, through the stand-in of CUDA and NCCL (`gpu/stand_in`): no GPU is needed.

#![expect(clippy::disallowed_methods, reason = "ranks are threads with clocks of their own")]

mod communicators;
mod device_state;
mod failures;
mod generations;
mod loading;
mod on_gpu;
mod operations;
mod processes;
mod resets;
mod support;
