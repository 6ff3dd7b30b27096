// Exponential and logarithm of sixteen numbers: the same bits on every call, whatever the C library.
// See lanes.h for why everything here has internal linkage.
#pragma once

#include "lanes.h"

namespace aquiline {
namespace {

// ln 2 in two parts, the first short enough that its product with an exponent is exact.
constexpr float kLn2High = 0.693359375f;
constexpr float kLn2Low = -2.12194440e-4f;

// e^x within 2 units in the last place. Below -87.3, where the result would leave the normal range, it is 0; above 88.3
// it stays at e^88.3. NaN is NaN.
inline Lanes exponential(const Lanes& x) {
    const Lanes highest = broadcast(88.3f), lowest = broadcast(-87.3f);
    // NaN comes through where it stands second.
    const Lanes clamped = larger(lowest, smaller(highest, x));
    // Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
    const Lanes magic = broadcast(12582912.0f);
    const Lanes shifted = multiply_add(clamped, broadcast(1.44269504f), magic);
    const Lanes power = shifted - magic;
    Lanes rest = multiply_add(power, broadcast(-kLn2High), clamped);
    rest = multiply_add(power, broadcast(-kLn2Low), rest);
    // The Taylor series: on |rest| <= ln(2) / 2 the first term left out is below a tenth of the last place.
    Lanes series = broadcast(1.0f / 5040);
    series = multiply_add(series, rest, broadcast(1.0f / 720));
    series = multiply_add(series, rest, broadcast(1.0f / 120));
    series = multiply_add(series, rest, broadcast(1.0f / 24));
    series = multiply_add(series, rest, broadcast(1.0f / 6));
    series = multiply_add(series, rest, broadcast(0.5f));
    series = multiply_add(series * rest, rest, rest) + 1.0f;
    // A product rather than a sum of bits, which would turn NaN into some number.
    const IntLanes exponent = (with_bits_of<IntLanes>(shifted) - with_bits_of<IntLanes>(magic)) << 23;
    const Lanes scale = with_bits_of<Lanes>(with_bits_of<IntLanes>(broadcast(1.0f)) + exponent);
    return select(is_greater(lowest, x), Lanes{}, series * scale);
}

// The natural logarithm of positive normal numbers.
inline Lanes logarithm(const Lanes& x) {
    const IntLanes bits = with_bits_of<IntLanes>(x);
    // Subtracting the bits of sqrt(1/2) before the exponent is cut off leaves a mantissa between sqrt(1/2) and sqrt(2).
    const IntLanes exponent = (bits - with_bits_of<IntLanes>(broadcast(0.70710678f))) >> 23;
    const Lanes mantissa = with_bits_of<Lanes>(bits - (exponent << 23));
    const Lanes power = to_float(exponent);
    // log m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| < 0.172.
    const Lanes s = (mantissa - 1.0f) / (mantissa + 1.0f);
    const Lanes square = s * s;
    Lanes series = broadcast(2.0f / 9);
    series = multiply_add(series, square, broadcast(2.0f / 7));
    series = multiply_add(series, square, broadcast(2.0f / 5));
    series = multiply_add(series, square, broadcast(2.0f / 3));
    const Lanes small = multiply_add(series * square, s, s + s);
    return multiply_add(power, broadcast(kLn2High), multiply_add(power, broadcast(kLn2Low), small));
}

}  // namespace
}  // namespace aquiline
