//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// esp is what C saw of an ESP action.
type esp struct {
	attr   libibverbs.FlowActionEspAttr // without its pointers
	esp    libibverbs.FlowActionEsp
	keymat []libibverbs.FlowActionEspKeymatAesGcm
	replay []libibverbs.FlowActionEspReplayBmp
}

func espOf(call fakelib.Call) (e esp) {
	attr := fakelib.Struct[libibverbs.FlowActionEspAttr](call, 1)
	e.esp = fakelib.Follow[libibverbs.FlowActionEsp](call, &attr.EspAttr, 1)[0]
	if attr.KeymatPtr != nil {
		e.keymat = fakelib.Follow[libibverbs.FlowActionEspKeymatAesGcm](call, &attr.KeymatPtr, 1)
	}
	if attr.ReplayPtr != nil {
		e.replay = fakelib.Follow[libibverbs.FlowActionEspReplayBmp](call, &attr.ReplayPtr, 1)
	}
	e.attr = *attr
	return e
}

func TestESPAction(t *testing.T) {
	r := open(t)
	key := []byte("0123456789abcdefghijklmnopqrstuv")
	a := must(flow.CreateESPAction(r.c, flow.ESPConfig{
		SPI: 0x1234, Seq: 5, TFCPad: 6, Flags: flow.ESPTransport | flow.ESPEncrypt, HardLimitPackets: 1 << 40,
		Key:          &flow.AESGCM{Key: key, Salt: 0xdeadbeef, IV: 1<<63 + 1, ICVLen: 12},
		ReplayWindow: 64, ESN: 9, UseESN: true,
	}))(t)
	runtime.GC() // what was pinned is not needed any more
	call := r.p.Only("ibv_create_flow_action_esp")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	keymat := libibverbs.FlowActionEspKeymatAesGcm{Iv: 1<<63 + 1, Salt: 0xdeadbeef, IcvLen: 12, KeyLen: 32}
	copy(bytesOf(&keymat.AesKey), key)
	require.Equal(t, esp{
		attr: libibverbs.FlowActionEspAttr{
			KeymatProto: libibverbs.IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM, KeymatLen: 56,
			ReplayProto: libibverbs.IBV_FLOW_ACTION_ESP_REPLAY_BMP, ReplayLen: 4, CompMask: 1, Esn: 9,
		},
		esp:    libibverbs.FlowActionEsp{Spi: 0x1234, Seq: 5, TfcPad: 6, Flags: 6, HardLimitPkts: 1 << 40},
		keymat: []libibverbs.FlowActionEspKeymatAesGcm{keymat},
		replay: []libibverbs.FlowActionEspReplayBmp{{Size: 64}},
	}, espOf(call))

	require.NoError(t, a.ModifyESP(flow.ESPConfig{Flags: flow.ESPNewESNWindow, ESN: 10, UseESN: true}))
	call = r.p.Only("ibv_modify_flow_action_esp")
	require.Equal(t, address(a.Raw()), call.Arg(0))
	require.Equal(t, esp{
		attr: libibverbs.FlowActionEspAttr{CompMask: 1, Esn: 10},
		esp:  libibverbs.FlowActionEsp{Flags: 8},
	}, espOf(call))
	r.p.Next("ibv_modify_flow_action_esp").Returns(int64(syscall.EOPNOTSUPP), 0)
	err := a.ModifyESP(flow.ESPConfig{SPI: 1})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_modify_flow_action_esp (ESP action for SPI 0x1234 of fake0)")
	r.p.Forget()

	raw := address(a.Raw())
	r.p.Next("ibv_destroy_flow_action").Returns(int64(syscall.EBUSY), 0)
	require.ErrorIs(t, a.Close(), syscall.EBUSY)
	require.NoError(t, a.Close())
	require.Equal(t, []int64{raw}, r.p.Calls()[1].Args())
}

func TestESPKeys(t *testing.T) {
	r := open(t)
	for _, size := range []int{16, 24, 32} {
		a := must(flow.CreateESPAction(r.c, flow.ESPConfig{Key: &flow.AESGCM{Key: make([]byte, size)}}))(t)
		e := espOf(r.p.Only("ibv_create_flow_action_esp"))
		require.Equal(t, []libibverbs.FlowActionEspKeymatAesGcm{{IcvLen: 16, KeyLen: uint32(size)}}, e.keymat)
		require.Equal(t, libibverbs.FlowActionEspAttr{KeymatLen: 56}, e.attr)
		require.Nil(t, e.replay)
		require.NoError(t, a.Close())
		r.p.Forget()
	}
}

func TestESPActionFails(t *testing.T) {
	r := open(t)
	good := flow.AESGCM{Key: make([]byte, 16)}
	a := keep(t, must(flow.CreateESPAction(r.c, flow.ESPConfig{Key: &good}))(t))
	r.p.Forget()
	for want, config := range map[string]flow.ESPConfig{
		"fake0): ESP with a key of 0 bytes":          {Key: &flow.AESGCM{}},
		"fake0): ESP with a key of 33 bytes":         {Key: &flow.AESGCM{Key: make([]byte, 33)}},
		"fake0): ESP with a check value of 10 bytes": {Key: &flow.AESGCM{Key: good.Key, ICVLen: 10}},
		"fake0): ESP with a replay window of -1":     {Key: &good, ReplayWindow: -1},
	} {
		_, err := flow.CreateESPAction(r.c, config)
		for _, err := range []error{err, a.ModifyESP(config)} {
			require.ErrorIs(t, err, syscall.EINVAL)
			require.ErrorContains(t, err, want)
		}
	}
	_, err := flow.CreateESPAction(r.c, flow.ESPConfig{})
	require.ErrorContains(t, err, "fake0): ESP with no key")
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_create_flow_action_esp").Returns(0, syscall.EOPNOTSUPP)
	_, err = flow.CreateESPAction(r.c, flow.ESPConfig{Key: &good})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
