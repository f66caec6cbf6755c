//! The globals that a dictionary of tensors may call for. Nothing is ever looked
//! up anywhere else.

use tensor::Dtype;

use super::fault::{PickleFault, shown};

/// An allowed global.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch._utils._rebuild_tensor_v2`.
    RebuildTensor,
    /// `torch._utils._rebuild_parameter`.
    RebuildParameter,
    /// `torch._tensor._rebuild_from_type_v2`.
    RebuildFromType,
    /// `torch.Tensor` or `torch.nn.parameter.Parameter`.
    TensorType,
    /// A storage class such as `torch.FloatStorage`.
    Storage(Dtype),
}

const STORAGES: [(&str, Dtype); 11] = [
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::BF16),
    ("DoubleStorage", Dtype::F64),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
    ("ShortStorage", Dtype::I16),
    ("CharStorage", Dtype::I8),
    ("ByteStorage", Dtype::U8),
    ("BoolStorage", Dtype::Bool),
    ("ComplexFloatStorage", Dtype::C64),
];

impl Global {
    /// The global of this name, if it is on the list.
    pub(super) fn find(module: &str, name: &str) -> Result<Self, PickleFault> {
        let storage = || STORAGES.iter().find(|row| row.0 == name);
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("torch._tensor", "_rebuild_from_type_v2") => Self::RebuildFromType,
            ("torch", "Tensor") | ("torch.nn.parameter", "Parameter") => Self::TensorType,
            ("torch", _) => match storage() {
                Some(&(_, dtype)) => Self::Storage(dtype),
                None => return Err(refused(module, name)),
            },
            _ => return Err(refused(module, name)),
        })
    }
}

fn refused(module: &str, name: &str) -> PickleFault {
    PickleFault::Global {
        name: shown(&format!("{module}.{name}")),
    }
}
