//! A perceptron with one hidden layer, in candle, and what makes it part of a training state: it is stored as the
//! numbers of its parameters, in a row.

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::optim::{Optimizer, SGD};
use candle_nn::{Linear, Module, loss};
use serde::{Deserialize, Serialize};

/// `?` makes an error of the training function of it.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Pixels of an image.
pub(crate) const PIXELS: usize = 64;
const HIDDEN: usize = 48;
const CLASSES: usize = 10;
const LEARNING_RATE: f64 = 0.5;

/// Weight and bias of each layer.
const SHAPES: [&[usize]; 4] = [&[HIDDEN, PIXELS], &[HIDDEN], &[CLASSES, HIDDEN], &[CLASSES]];

/// The parameters, in the order of [`SHAPES`].
#[derive(Clone, Deserialize, Serialize)]
#[serde(into = "Numbers", try_from = "Numbers")]
pub(crate) struct Model {
    parameters: Vec<Var>,
}

/// All parameters, one after the other.
#[derive(Deserialize, Serialize)]
struct Numbers(#[serde(with = "elastic_node::bulk")] Vec<f32>);

impl Model {
    /// One that knows nothing: its weights are spread evenly by a low-discrepancy sequence (Weyl's, on the golden ratio),
    /// the same in every process.
    pub(crate) fn new() -> Result<Self> {
        const GOLDEN: f64 = 0.618_033_988_749_894_9;
        let parameter = |shape: &&[usize]| {
            let bound = if shape.len() == 1 { 0.0 } else { 0.35 };
            let spread = |index: usize| ((index as f64 * GOLDEN).fract() * 2.0 - 1.0) * bound;
            let numbers: Vec<f32> =
                (0..shape.iter().product()).map(|index| spread(index) as f32).collect();
            Var::from_slice(&numbers, *shape, &Device::Cpu)
        };
        Ok(Self { parameters: SHAPES.iter().map(parameter).collect::<candle_core::Result<_>>()? })
    }

    /// The parameters as little-endian bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        Numbers::from(self.clone()).0.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn scores(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let layer = |weight: usize, bias: usize| {
            let [weight, bias] =
                [weight, bias].map(|index| self.parameters[index].as_tensor().clone());
            Linear::new(weight, Some(bias))
        };
        layer(2, 3).forward(&layer(0, 1).forward(images)?.tanh()?)
    }

    fn cross_entropy(&self, images: &Tensor, labels: &Tensor) -> candle_core::Result<Tensor> {
        loss::cross_entropy(&self.scores(images)?, labels)
    }

    /// The mean gradient of the loss, times `weight`, in the order of the parameters. All zero without images.
    pub(crate) fn gradient(
        &self,
        images: &Tensor,
        labels: &Tensor,
        weight: f32,
    ) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        if labels.elem_count() == 0 {
            all.resize(self.parameters.iter().map(|parameter| parameter.elem_count()).sum(), 0.0);
            return Ok(all);
        }
        let loss = (self.cross_entropy(images, labels)? * f64::from(weight))?;
        let gradients = loss.backward()?;
        for parameter in &self.parameters {
            let gradient = gradients.get(parameter).expect("the loss depends on every parameter");
            all.extend(gradient.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(all)
    }

    /// A step of candle's optimiser along this gradient.
    pub(crate) fn step(&mut self, gradient: &[f32]) -> Result<()> {
        // candle makes an empty one in no other way.
        let mut gradients: GradStore = Tensor::zeros((), DType::F32, &Device::Cpu)?.backward()?;
        let mut rest = gradient;
        for parameter in &self.parameters {
            let (own, others) = rest.split_at(parameter.elem_count());
            gradients.insert(parameter, Tensor::from_slice(own, parameter.shape(), &Device::Cpu)?);
            rest = others;
        }
        Ok(SGD::new(self.parameters.clone(), LEARNING_RATE)?.step(&gradients)?)
    }

    /// The mean loss.
    pub(crate) fn loss(&self, images: &Tensor, labels: &Tensor) -> Result<f32> {
        Ok(self.cross_entropy(images, labels)?.to_scalar()?)
    }

    /// The share of images that are told correctly.
    pub(crate) fn accuracy(&self, images: &Tensor, labels: &Tensor) -> Result<f32> {
        let told = self.scores(images)?.argmax(D::Minus1)?;
        Ok(told.eq(labels)?.to_dtype(DType::F32)?.mean_all()?.to_scalar()?)
    }
}

impl From<Model> for Numbers {
    fn from(model: Model) -> Self {
        let numbers = |parameter: &Var| parameter.flatten_all()?.to_vec1::<f32>();
        let all: candle_core::Result<Vec<_>> = model.parameters.iter().map(numbers).collect();
        Self(all.expect("they are numbers in main memory").concat())
    }
}

impl TryFrom<Numbers> for Model {
    type Error = candle_core::Error;

    fn try_from(Numbers(numbers): Numbers) -> candle_core::Result<Self> {
        let mut rest = numbers.as_slice();
        let mut parameters = Vec::with_capacity(SHAPES.len());
        for shape in SHAPES {
            let own = rest.split_off(..shape.iter().product());
            let own =
                own.ok_or_else(|| candle_core::Error::msg("too few numbers for the model"))?;
            parameters.push(Var::from_slice(own, shape, &Device::Cpu)?);
        }
        Ok(Self { parameters })
    }
}
