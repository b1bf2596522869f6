//! A perceptron with one hidden layer, in candle, as a part of a training state: each parameter is an array with a
//! shape, which durable checkpoints have under the names of the fields, such as `model.hidden.weight`.

use std::borrow::Cow;

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::optim::{Optimizer, SGD};
use candle_nn::{Linear, Module, loss};
use elastic_node::{DataType, ShapedArray};
use serde::{Deserialize, Serialize};

/// `?` makes an error of the training function of it.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Pixels of an image.
pub(crate) const PIXELS: usize = 64;
const HIDDEN: usize = 48;
const CLASSES: usize = 10;
const LEARNING_RATE: f64 = 0.5;

/// The model.
#[derive(Deserialize, Serialize)]
pub(crate) struct Model {
    hidden: Layer,
    output: Layer,
}

#[derive(Deserialize, Serialize)]
struct Layer {
    #[serde(with = "elastic_node::shaped")]
    weight: Parameter,
    #[serde(with = "elastic_node::shaped")]
    bias: Parameter,
}

/// A tensor that is trained: of `f32`, in main memory.
struct Parameter(Var);

impl Model {
    /// An untrained model: its weights are spread evenly by a low-discrepancy sequence (Weyl's, on the golden ratio),
    /// the same in every process.
    pub(crate) fn new() -> Result<Self> {
        const GOLDEN: f64 = 0.618_033_988_749_894_9;
        let parameter = |shape: &[usize]| -> Result<Parameter> {
            let bound = if shape.len() == 1 { 0.0 } else { 0.35 };
            let spread = |index: usize| ((index as f64 * GOLDEN).fract() * 2.0 - 1.0) * bound;
            let numbers: Vec<f32> =
                (0..shape.iter().product()).map(|index| spread(index) as f32).collect();
            Ok(Parameter(Var::from_slice(&numbers, shape, &Device::Cpu)?))
        };
        let layer = |inputs: usize, outputs: usize| -> Result<Layer> {
            Ok(Layer { weight: parameter(&[outputs, inputs])?, bias: parameter(&[outputs])? })
        };
        Ok(Self { hidden: layer(PIXELS, HIDDEN)?, output: layer(HIDDEN, CLASSES)? })
    }

    /// Weight and bias of each layer.
    const fn parameters(&self) -> [&Var; 4] {
        let Self { hidden, output } = self;
        [&hidden.weight.0, &hidden.bias.0, &output.weight.0, &output.bias.0]
    }

    /// The parameters as little-endian bytes, one after the other.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.parameters().map(bytes_of).concat()
    }

    fn scores(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        self.output.forward(&self.hidden.forward(images)?.tanh()?)
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
            all.resize(self.parameters().iter().map(|it| it.elem_count()).sum(), 0.0);
            return Ok(all);
        }
        let loss = (self.cross_entropy(images, labels)? * f64::from(weight))?;
        let gradients = loss.backward()?;
        for parameter in self.parameters() {
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
        for parameter in self.parameters() {
            let (own, others) = rest.split_at(parameter.elem_count());
            gradients.insert(parameter, Tensor::from_slice(own, parameter.shape(), &Device::Cpu)?);
            rest = others;
        }
        let parameters = self.parameters().map(Clone::clone).to_vec();
        Ok(SGD::new(parameters, LEARNING_RATE)?.step(&gradients)?)
    }

    /// The mean loss.
    pub(crate) fn loss(&self, images: &Tensor, labels: &Tensor) -> Result<f32> {
        Ok(self.cross_entropy(images, labels)?.to_scalar()?)
    }

    /// The share of images that are classified correctly.
    pub(crate) fn accuracy(&self, images: &Tensor, labels: &Tensor) -> Result<f32> {
        let told = self.scores(images)?.argmax(D::Minus1)?;
        Ok(told.eq(labels)?.to_dtype(DType::F32)?.mean_all()?.to_scalar()?)
    }
}

impl Layer {
    fn forward(&self, inputs: &Tensor) -> candle_core::Result<Tensor> {
        let [weight, bias] = [&self.weight.0, &self.bias.0].map(|it| it.as_tensor().clone());
        Linear::new(weight, Some(bias)).forward(inputs)
    }
}

impl ShapedArray for Parameter {
    fn data_type(&self) -> DataType {
        DataType::F32
    }

    fn shape(&self) -> Vec<usize> {
        self.0.dims().to_vec()
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        Cow::Owned(bytes_of(&self.0))
    }

    fn from_bytes(
        data_type: DataType,
        shape: &[usize],
        bytes: &[u8],
    ) -> std::result::Result<Self, String> {
        if data_type != DataType::F32 {
            return Err(format!("a parameter is of f32, not of {data_type}"));
        }
        let tensor = Tensor::from_raw_buffer(bytes, DType::F32, shape, &Device::Cpu);
        let parameter = tensor.and_then(|tensor| Var::from_tensor(&tensor));
        parameter.map(Self).map_err(|error| error.to_string())
    }
}

/// Its numbers as little-endian bytes.
fn bytes_of(parameter: &Var) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parameter.elem_count() * size_of::<f32>());
    parameter.write_bytes(&mut bytes).expect("they are numbers in main memory");
    bytes
}
