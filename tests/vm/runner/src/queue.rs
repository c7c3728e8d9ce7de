//! Chooses the next case: the one that takes the longest, with no more emulated machines at the same time than the host
//! has pairs of CPUs. Each machine has two CPUs and keeps them busy. If two machines share a pair, the CPUs of each
//! wait for each other, and the same work takes a third more CPU time. If only emulated machines are left, there is one
//! for each CPU, because a single one does not keep its second CPU busy all the time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Cases that wait for their turn.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
    /// The maximum number of emulated machines at the same time, with and without other cases.
    most: Most,
}

#[derive(Clone, Copy)]
struct Most {
    beside_others: usize,
    alone: usize,
}

struct State<T> {
    /// In order; each with a flag for emulated machines.
    waiting: Vec<(T, bool)>,
    /// The number of running cases on emulated machines.
    emulated: usize,
    /// The number of running cases on other machines.
    others: usize,
}

/// A running case; dropping it lets the next emulated case start.
pub struct Turn<'a, T> {
    pub case: T,
    emulated: bool,
    queue: &'a Queue<T>,
}

impl<T> Queue<T> {
    /// Takes the ordered cases, each with a flag for emulated machines, and the number of host CPUs.
    pub fn new(waiting: Vec<(T, bool)>, processors: usize) -> Queue<T> {
        Queue {
            state: Mutex::new(State {
                waiting,
                emulated: 0,
                others: 0,
            }),
            ended: Condvar::new(),
            most: Most {
                beside_others: (processors / 2).max(1),
                alone: processors,
            },
        }
    }

    /// Returns the next case. Waits if all remaining cases are emulated and no more of these may run. `None` if no case
    /// is left.
    pub fn next(&self) -> Option<Turn<'_, T>> {
        let mut state = self.state();
        loop {
            if state.waiting.is_empty() {
                return None;
            }
            if let Some((case, emulated)) = state.take(self.most) {
                return Some(Turn {
                    case,
                    emulated,
                    queue: self,
                });
            }
            let waited = self.ended.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    /// The first case that may start now.
    fn take(&mut self, most: Most) -> Option<(T, bool)> {
        let alone = self.others == 0 && self.waiting.iter().all(|(_, emulated)| *emulated);
        let most = match alone {
            true => most.alone,
            false => most.beside_others,
        };
        let free = self.emulated < most;
        let mut waiting = self.waiting.iter();
        let first = waiting.position(|(_, emulated)| free || !emulated)?;
        let (case, emulated) = self.waiting.remove(first);
        *self.at_work(emulated) += 1;
        Some((case, emulated))
    }

    fn at_work(&mut self, emulated: bool) -> &mut usize {
        match emulated {
            true => &mut self.emulated,
            false => &mut self.others,
        }
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        *self.queue.state().at_work(self.emulated) -= 1;
        self.queue.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn other_cases_overtake_emulated_ones() {
        let queue = Queue::new(
            vec![("long", true), ("vm", true), ("a", false), ("b", false)],
            2,
        );
        let long = queue.next().unwrap();
        let other = queue.next().unwrap();
        assert_eq!((long.case, other.case), ("long", "a"));
        drop(long);
        let taken = [queue.next().unwrap(), queue.next().unwrap()];
        assert_eq!(taken.each_ref().map(|turn| turn.case), ["vm", "b"]);
        assert!(queue.next().is_none());
    }

    #[test]
    fn second_emulated_case_waits() {
        let queue = Queue::new(vec![("a", true), ("b", true), ("other", false)], 2);
        let a = queue.next().unwrap();
        let other = queue.next().unwrap();
        assert_eq!((a.case, other.case), ("a", "other"));
        assert_eq!(queue.state().take(queue.most), None);
        drop(other);
        assert_eq!(queue.next().map(|turn| turn.case), Some("b"));
    }

    #[test]
    fn remaining_emulated_cases_get_one_cpu_each() {
        let queue = Queue::new(vec![("a", true), ("b", true), ("c", true)], 2);
        let turns = [queue.next().unwrap(), queue.next().unwrap()];
        assert_eq!(turns.each_ref().map(|turn| turn.case), ["a", "b"]);
        assert_eq!(queue.state().take(queue.most), None);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.next().map(|turn| turn.case));
            drop(turns);
            assert_eq!(waiting.join().unwrap(), Some("c"));
        });
        assert!(queue.next().is_none());
    }
}
