//! The run loop with real threads, a fake driver, and real sockets.
