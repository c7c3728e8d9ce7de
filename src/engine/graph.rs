//! Orders the steps by their `after` lists.

use std::collections::{BTreeMap, BTreeSet};

use crate::{model::id::StepId, step::Step};

/// An error in the list of steps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Two steps have the same ID.
    #[error("order the steps: `{id}` occurs twice")]
    Twice {
        /// The duplicate ID.
        id: StepId,
    },
    /// The `after` list of a step contains an unknown ID.
    #[error("order the steps: `{id}` comes after `{unknown}`, which does not exist")]
    Unknown {
        /// The step.
        id: StepId,
        /// The unknown ID.
        unknown: StepId,
    },
    /// Steps that wait for each other.
    #[error("order the steps: {} wait for each other", names(.ids))]
    Cycle {
        /// All steps in and after the cycle.
        ids: Vec<StepId>,
    },
}

fn names(ids: &[StepId]) -> String {
    let names: Vec<String> = ids.iter().map(|id| format!("`{id}`")).collect();
    names.join(", ")
}

/// The order, by index into the list of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// For each step, the steps in its `after` list.
    pub up: Vec<Vec<usize>>,
    /// For each step, all steps that come after it, directly or indirectly.
    pub below: Vec<BTreeSet<usize>>,
    /// All steps in order: each one after the steps in its `after` list, otherwise in list order.
    pub order: Vec<usize>,
}

impl Graph {
    /// Orders the steps.
    ///
    /// # Errors
    /// See [`GraphError`].
    pub fn new(steps: &[Step]) -> Result<Self, GraphError> {
        let mut index = BTreeMap::new();
        for (at, step) in steps.iter().enumerate() {
            if index.insert(&step.id, at).is_some() {
                return Err(GraphError::Twice {
                    id: step.id.clone(),
                });
            }
        }
        let mut up = Vec::with_capacity(steps.len());
        for step in steps {
            let mut mine = Vec::new();
            for name in &step.after {
                mine.push(*index.get(name).ok_or_else(|| GraphError::Unknown {
                    id: step.id.clone(),
                    unknown: name.clone(),
                })?);
            }
            up.push(mine);
        }

        let mut order = Vec::with_capacity(steps.len());
        let mut placed = vec![false; steps.len()];
        while let Some(next) = (0..steps.len())
            .find(|at| !placed[*at] && up[*at].iter().all(|upstream| placed[*upstream]))
        {
            placed[next] = true;
            order.push(next);
        }
        if order.len() < steps.len() {
            let ids = (0..steps.len())
                .filter(|at| !placed[*at])
                .map(|at| steps[at].id.clone())
                .collect();
            return Err(GraphError::Cycle { ids });
        }

        let below = below(&up, &order);
        Ok(Self { up, below, order })
    }

    /// Returns the order of a subset of the steps. Dependencies through removed steps are kept.
    pub fn only(&self, keep: &[bool]) -> Self {
        let kept: Vec<usize> = (0..keep.len()).filter(|at| keep[*at]).collect();
        let place = |at: usize| kept.iter().position(|kept| *kept == at);
        let up: Vec<Vec<usize>> = kept
            .iter()
            .map(|at| {
                (0..keep.len())
                    .filter(|other| self.below[*other].contains(at))
                    .filter_map(place)
                    .collect()
            })
            .collect();
        let order: Vec<usize> = self.order.iter().copied().filter_map(place).collect();
        Self {
            below: below(&up, &order),
            up,
            order,
        }
    }
}

fn below(up: &[Vec<usize>], order: &[usize]) -> Vec<BTreeSet<usize>> {
    let mut below = vec![BTreeSet::new(); up.len()];
    for at in order.iter().rev() {
        for upstream in &up[*at] {
            let mine = below[*at].clone();
            below[*upstream].insert(*at);
            below[*upstream].extend(mine);
        }
    }
    below
}
