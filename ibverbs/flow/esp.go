// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Action encrypts or decrypts ESP packets of IPsec in the device. Use it in a
// rule with [Apply]. Its methods may be called concurrently.
type Action struct {
	object object.Object
	device *ibverbs.Device
	raw    *libibverbs.FlowAction
}

// ESPFlags are options of an ESP action; combine them with |. By default, a
// device decrypts in tunnel mode and leaves the headers to the program.
type ESPFlags = libibverbs.FlowActionEspFlags

// The options of an ESP action.
const (
	ESPFullOffload  ESPFlags = libibverbs.IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD   // process headers and trailers too
	ESPTransport    ESPFlags = libibverbs.IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT      // transport mode instead of tunnel mode
	ESPEncrypt      ESPFlags = libibverbs.IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT        // encrypt sent packets
	ESPNewESNWindow ESPFlags = libibverbs.IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW // the ESN of the config is for the next window
)

// ESPConfig is the configuration of an ESP action. Numbers are in host byte
// order.
type ESPConfig struct {
	SPI              uint32 // security parameters index
	Seq              uint32 // sequence number
	TFCPad           uint32 // number of bytes of padding that hides the length of packets (TFC)
	Flags            ESPFlags
	HardLimitPackets uint64 // maximum number of packets that may use the key

	// Key is required to create an action. When an action is modified, nil
	// keeps its key.
	Key *AESGCM

	// ReplayWindow is the size of the device's anti-replay window in
	// packets. If it is 0, the program must protect itself against replays.
	ReplayWindow int

	// ESN is the upper half of the extended sequence number. It is used
	// only if UseESN is set.
	ESN    uint32
	UseESN bool
}

// AESGCM holds the parameters of AES-GCM with sequence numbers as IVs.
type AESGCM struct {
	Key    []byte // key of 16, 24 or 32 bytes
	Salt   uint32
	IV     uint64 // first IV
	ICVLen int    // number of bytes of the integrity check value: 8, 12 or 16; 0 means 16
}

// keymat returns the parameters in C's form, or what is wrong with them.
func (k *AESGCM) keymat() (*libibverbs.FlowActionEspKeymatAesGcm, string) {
	icv := k.ICVLen
	if icv == 0 {
		icv = 16
	}
	switch {
	case len(k.Key) != 16 && len(k.Key) != 24 && len(k.Key) != 32:
		return nil, fmt.Sprintf("Key.Key has %d bytes, not 16, 24 or 32", len(k.Key))
	case icv != 8 && icv != 12 && icv != 16:
		return nil, fmt.Sprintf("Key.ICVLen is %d, not 0, 8, 12 or 16", k.ICVLen)
	}
	m := &libibverbs.FlowActionEspKeymatAesGcm{
		Iv: k.IV, IvAlgo: uint32(libibverbs.IBV_FLOW_ACTION_IV_ALGO_SEQ), Salt: k.Salt,
		IcvLen: uint32(icv), KeyLen: uint32(len(k.Key)),
	}
	copy(bytesOf(&m.AesKey), k.Key)
	return m, ""
}

// attr returns the config in C's form, or what is wrong with it. The pinner
// pins the memory that the result points to.
func (c ESPConfig) attr(pinner *runtime.Pinner) (*libibverbs.FlowActionEspAttr, string) {
	esp := &libibverbs.FlowActionEsp{
		Spi: c.SPI, Seq: c.Seq, TfcPad: c.TFCPad, Flags: uint32(c.Flags), HardLimitPkts: c.HardLimitPackets,
	}
	pinner.Pin(esp)
	a := &libibverbs.FlowActionEspAttr{EspAttr: esp}
	if c.Key != nil {
		keymat, wrong := c.Key.keymat()
		if wrong != "" {
			return nil, wrong
		}
		pinner.Pin(keymat)
		a.KeymatProto = libibverbs.IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM
		a.KeymatPtr, a.KeymatLen = unsafe.Pointer(keymat), uint16(unsafe.Sizeof(*keymat))
	}
	switch {
	case c.ReplayWindow < 0 || c.ReplayWindow > math.MaxInt32:
		return nil, fmt.Sprintf("ReplayWindow is %d, not from 0 to %d", c.ReplayWindow, math.MaxInt32)
	case c.ReplayWindow > 0:
		replay := &libibverbs.FlowActionEspReplayBmp{Size: uint32(c.ReplayWindow)}
		pinner.Pin(replay)
		a.ReplayProto = libibverbs.IBV_FLOW_ACTION_ESP_REPLAY_BMP
		a.ReplayPtr, a.ReplayLen = unsafe.Pointer(replay), uint16(unsafe.Sizeof(*replay))
	}
	if c.UseESN {
		a.CompMask, a.Esn = libibverbs.IBV_FLOW_ACTION_ESP_MASK_ESN, c.ESN
	}
	return a, ""
}

// CreateESPAction creates an action that encrypts or decrypts ESP packets; see
// ibv_create_flow_action(3). Hardly any device supports such actions; on
// others, the error matches errors.ErrUnsupported.
func CreateESPAction(device *ibverbs.Device, config ESPConfig) (*Action, error) {
	parent := sibling.ObjectOf(device)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	if config.Key == nil {
		return nil, badESP("ibv_create_flow_action_esp", "Key is nil", device.Name())
	}
	var pinner runtime.Pinner // C gets pointers to pointers
	defer pinner.Unpin()
	attr, wrong := config.attr(&pinner)
	if wrong != "" {
		return nil, badESP("ibv_create_flow_action_esp", wrong, device.Name())
	}
	raw, err := libibverbs.CreateFlowActionEsp(device.Raw(), attr)
	if err != nil {
		return nil, sibling.Wrap(device.Name(), err)
	}
	a := &Action{device: device, raw: raw}
	a.object.Init(fmt.Sprintf("ESP action for SPI %#x of %s", config.SPI, device.Name()), parent)
	return a, nil
}

func badESP(op, wrong, name string) error {
	return cerr.Refuse(op, name, "ESPConfig: %s", wrong)
}

func (a *Action) self() *object.Object {
	if a == nil {
		return nil
	}
	return &a.object
}

// ModifyESP changes the action; see ibv_modify_flow_action(3). Some devices
// only accept a new ESN, with ESPNewESNWindow and all other fields zero.
func (a *Action) ModifyESP(config ESPConfig) error {
	if err := a.self().Use(); err != nil {
		return err
	}
	defer a.object.Done()
	var pinner runtime.Pinner // C gets pointers to pointers
	defer pinner.Unpin()
	attr, wrong := config.attr(&pinner)
	if wrong != "" {
		return badESP("ibv_modify_flow_action_esp", wrong, a.object.Name())
	}
	return sibling.Wrap(a.object.Name(), libibverbs.ModifyFlowActionEsp(a.raw, attr))
}

// Raw returns the C object, which is valid until Close.
func (a *Action) Raw() *libibverbs.FlowAction { return a.raw }

// Close destroys the action; see ibv_destroy_flow_action(3). While rules use
// it, Close does nothing and returns an *[ibverbs.BusyError].
func (a *Action) Close() error {
	return a.self().Close(nil, func() error {
		return sibling.Wrap(a.object.Name(), sibling.UnlessRemoved(a.device, libibverbs.DestroyFlowAction(a.raw)))
	})
}
