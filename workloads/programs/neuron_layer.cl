/*
 * neuron_layer.cl - element-wise layers, each with a kernel forward and one backward, as a framework
 * launches them: one work-item an element, the settings of the layer as arguments.
 *
 * LAYER(name, settings, top, slope): `x` is the element of the bottom (the input), `top` what the
 * layer makes of it and `slope` the derivative of that. `aux` is what a layer keeps for each
 * element: the slopes of PReLU, the mask of dropout.
 */
#define NONE
#define ONE , float a
#define TWO , float a, float b
#define THREE , float a, float b, float c
#define AUX , __global const float *auxiliary
#define aux auxiliary[i]

#define LAYER(name, settings, top_value, slope)                                                    \
    __kernel void name##_forward(uint count, __global const float *bottom,                         \
                                 __global float *top settings)                                     \
    {                                                                                              \
        uint i = get_global_id(0);                                                                 \
        if (i < count) {                                                                           \
            float x = bottom[i];                                                                   \
            top[i] = (top_value);                                                                  \
        }                                                                                          \
    }                                                                                              \
    __kernel void name##_backward(uint count, __global const float *top_diff,                      \
                                  __global const float *bottom,                                    \
                                  __global float *bottom_diff settings)                            \
    {                                                                                              \
        uint i = get_global_id(0);                                                                 \
        if (i < count) {                                                                           \
            float x = bottom[i];                                                                   \
            bottom_diff[i] = top_diff[i] * (slope);                                                \
        }                                                                                          \
    }

float logistic(float x)
{
    return 1.0f / (1.0f + exp(-x));
}

/* log(1 + exp(x)) without overflow. */
float soft_plus(float x)
{
    return fmax(x, 0.0f) + log(1.0f + exp(-fabs(x)));
}

float normal_cumulative(float x)
{
    return 0.5f * (1.0f + erf(x * M_SQRT1_2_F));
}

float normal_density(float x)
{
    return 0.3989422804f * exp(-0.5f * x * x);
}

float mish_slope(float x)
{
    float t = tanh(soft_plus(x));
    return t + x * (1.0f - t * t) * logistic(x);
}

LAYER(absval, NONE, fabs(x), sign(x))
LAYER(relu, ONE, x > 0.0f ? x : a *x, x > 0.0f ? 1.0f : a)
LAYER(elu, ONE, x > 0.0f ? x : a *(exp(x) - 1.0f), x > 0.0f ? 1.0f : a * exp(x))
LAYER(selu, TWO, a *(x > 0.0f ? x : b *(exp(x) - 1.0f)), a *(x > 0.0f ? 1.0f : b *exp(x)))
LAYER(sigmoid, NONE, logistic(x), logistic(x) * (1.0f - logistic(x)))
LAYER(tanh, NONE, tanh(x), 1.0f - tanh(x) * tanh(x))
LAYER(exp, THREE, pow(a, b + c * x), c *log(a) * pow(a, b + c * x))
LAYER(log, THREE, log(b + c * x) / log(a), c / ((b + c * x) * log(a)))
LAYER(power, THREE, pow(b + c * x, a), a *c *pow(b + c * x, a - 1.0f))
LAYER(bnll, NONE, soft_plus(x), logistic(x))
LAYER(prelu, AUX, x > 0.0f ? x : aux * x, x > 0.0f ? 1.0f : aux)
LAYER(swish, ONE, x *logistic(a *x), logistic(a *x) * (1.0f + a * x * (1.0f - logistic(a * x))))
LAYER(gelu, NONE, x *normal_cumulative(x), normal_cumulative(x) + x * normal_density(x))
LAYER(mish, NONE, x *tanh(soft_plus(x)), mish_slope(x))
LAYER(softsign, NONE, x / (1.0f + fabs(x)), 1.0f / ((1.0f + fabs(x)) * (1.0f + fabs(x))))
LAYER(dropout, AUX, x *aux, aux)
LAYER(threshold, ONE, x > a ? 1.0f : 0.0f, 0.0f)
LAYER(clip, TWO, clamp(x, a, b), x < a || x > b ? 0.0f : 1.0f)
LAYER(hardsigmoid, TWO, clamp(a *x + b, 0.0f, 1.0f),
      a *x + b > 0.0f && a * x + b < 1.0f ? a : 0.0f)
LAYER(hardswish, NONE, x *clamp(x / 6.0f + 0.5f, 0.0f, 1.0f),
      x <= -3.0f ? 0.0f : (x >= 3.0f ? 1.0f : x / 3.0f + 0.5f))

/* The gradient of PReLU's slopes, before it is summed over the elements that share a slope. */
__kernel void prelu_slopes(uint count, __global const float *top_diff, __global const float *bottom,
                           __global float *slope_diff)
{
    uint i = get_global_id(0);
    if (i < count) {
        slope_diff[i] = bottom[i] > 0.0f ? 0.0f : top_diff[i] * bottom[i];
    }
}
