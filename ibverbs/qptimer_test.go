package ibverbs

import (
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeoutCodes(t *testing.T) {
	for code := range uint8(32) {
		d := timeoutOf(code)
		back, err := timeoutCode(d)
		require.NoError(t, err)
		require.Equal(t, code, back)
		if code == 0 {
			continue
		}
		back, err = timeoutCode(d - 1)
		require.NoError(t, err)
		require.Equal(t, code, back, "rounded up")
	}
	require.Equal(t, 8192*time.Nanosecond, timeoutOf(1))
	require.Equal(t, 67108864*time.Nanosecond, timeoutOf(14))
	require.Equal(t, 67108864*time.Nanosecond, timeoutOf(14|32), "C has 5 bits")
	for d, want := range map[time.Duration]uint8{
		1: 1, 8192: 1, 8193: 2, time.Millisecond: 8, time.Second: 18, 2 * time.Hour: 31, NoTimeout: 0,
	} {
		code, err := timeoutCode(d)
		require.NoError(t, err)
		require.Equal(t, want, code, d)
	}
	for d, text := range map[time.Duration]string{
		0:                    "timeout of 0s, which is not positive",
		-time.Second:         "timeout of -1s, which is not positive",
		math.MinInt64:        "timeout of -2562047h47m16.854775808s, which is not positive",
		timeoutUnit<<31 + 1:  "timeout of 2h26m36.093022209s, the longest is 2h26m36.093022208s",
		math.MaxInt64 - 1000: "timeout of 2562047h47m16.854774807s, the longest is 2h26m36.093022208s",
	} {
		_, err := timeoutCode(d)
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

// The table of the InfiniBand specification, in milliseconds.
func TestRNRTimerCodes(t *testing.T) {
	for code, ms := range []float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	} {
		d := rnrTimerOf(uint8(code))
		require.InDelta(t, ms, d.Seconds()*1000, 1e-9)
		for _, less := range []time.Duration{0, 1} {
			back, err := rnrTimerCode(d - less)
			require.NoError(t, err)
			require.EqualValues(t, code, back)
		}
	}
	shortest, err := rnrTimerCode(0)
	require.NoError(t, err)
	require.EqualValues(t, 1, shortest)
	for d, text := range map[time.Duration]string{
		-1:                                  "RNR timer of -1ns, which is negative",
		655*time.Millisecond + 360*1000 + 1: "RNR timer of 655.360001ms, the longest is 655.36ms",
	} {
		_, err := rnrTimerCode(d)
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}
