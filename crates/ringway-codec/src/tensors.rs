//! The tensors of a bucket: names for errors, shapes for low-rank factors.

use ringway_kernels::codec::dot;

/// The sum of `a[i] * b[i]`, of finite vectors of any magnitude.
pub(crate) fn product(a: &[f32], b: &[f32]) -> f64 {
    // Squares as f32 end above 1.8e19, and lose digits below 1e-19.
    let fast = dot(a, b);
    if fast.is_finite() && fast.abs() > 1e-30 {
        return fast;
    }
    let exact = |(&a, &b): (&f32, &f32)| f64::from(a) * f64::from(b);
    a.iter().zip(b).map(exact).sum()
}

/// A tensor in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, as errors tell it.
    pub name: String,
    /// Its shape; elements are in row-major order.
    pub shape: Vec<usize>,
}

impl Tensor {
    /// A tensor of a shape.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            name: name.into(),
            shape: shape.into(),
        }
    }

    /// Its elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The tensors of a bucket, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tensors(Vec<Tensor>);

impl Tensors {
    /// In the order in which they lie in the bucket.
    pub const fn new(tensors: Vec<Tensor>) -> Self {
        Self(tensors)
    }

    /// One vector.
    pub fn vector(name: &str, len: usize) -> Self {
        Self(vec![Tensor::new(name, [len])])
    }

    /// All elements.
    pub fn len(&self) -> usize {
        self.0.iter().map(Tensor::len).sum()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensors.
    pub fn iter(&self) -> std::slice::Iter<'_, Tensor> {
        self.0.iter()
    }

    /// The name of the tensor that has an element of the bucket, and the element's place in it.
    pub(crate) fn locate(&self, element: usize) -> (String, usize) {
        let mut first = 0;
        for tensor in &self.0 {
            if element < first + tensor.len() {
                return (tensor.name.clone(), element - first);
            }
            first += tensor.len();
        }
        (String::new(), element)
    }
}
