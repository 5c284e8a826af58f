//! Why a request does not go on, for those with many checks: it fails, or something has to happen first.

use std::{borrow::Cow, rc::Rc};

use tokio::sync::oneshot;

use super::{Conn, Failure, Served, Ticket, Wait, answer, tell_control};
use crate::{control::ToControl, thread::Thread};

/// Why a request does not go on now.
pub(super) enum Stop {
    /// It is answered so.
    Fail(Failure),
    /// It is offered again, or its connection ends.
    Serve(Served),
}

impl<F: Into<Failure>> From<F> for Stop {
    fn from(failure: F) -> Self {
        Self::Fail(failure.into())
    }
}

/// It fails with this code and remark.
pub(super) fn failed(code: i32, remark: impl Into<Cow<'static, str>>) -> Stop {
    Stop::Fail(Failure::new(code, remark))
}

impl Stop {
    /// Asks the control thread; the request is offered again when `wait` is over.
    pub(super) fn until(thread: &Thread, question: ToControl, wait: Wait) -> Self {
        Self::Serve(match tell_control(&thread.shared.to_control, question) {
            Served::Done => Served::Again(wait),
            Served::Then(_) => Served::Again(Wait::ControlRoom),
            other => other,
        })
    }

    /// Asks for the configuration of a group; the request is offered again when it is there.
    pub(super) fn for_group(thread: &Thread, ticket: &Ticket, group: &str) -> Self {
        let (reply, ensured) = oneshot::channel();
        let question = ToControl::EnsureGroup { group: group.into(), reply };
        Self::until(thread, question, Wait::Group(*ticket, ensured))
    }

    /// What becomes of the request.
    pub(super) fn serve(self, thread: &Thread, conn: &Rc<Conn>, ticket: &Ticket) -> Served {
        match self {
            Self::Fail(failure) => answer::refuse(thread, conn, ticket, &failure),
            Self::Serve(served) => served,
        }
    }
}
