// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/dl"
	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/softroce/internal/node"
)

// The bindings call this library in all tests.
func TestMain(m *testing.M) {
	dl.Provide("soft", dl.Device{Find: Lookup, Open: node.SetNetwork})
	if err := dl.Use("soft"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// entry is a function that Go answers, and the bindings' function that calls
// it.
type entry struct {
	function, class string
	field           reflect.Value // the function, which may be nil
	stub            reflect.Value
}

// entries are all functions of verbs and cm, which are empty until the end of
// the test.
func entries(t *testing.T) []entry {
	t.Helper()
	oldVerbs, oldCM := verbs, cm
	t.Cleanup(func() { verbs, cm = oldVerbs, oldCM })
	verbs, cm = Verbs{}, CM{}
	var all []entry
	add := func(function, class string, field, stub any) {
		require.NotNil(t, stub, function)
		all = append(all, entry{function, class, reflect.ValueOf(field).Elem(), reflect.ValueOf(stub)})
	}
	verbsFunctions(add)
	cmFunctions(add)
	require.Len(t, all, reflect.TypeFor[Verbs]().NumField()+reflect.TypeFor[CM]().NumField())
	return all
}

// objects makes C's objects: memory that is not Go's, with the operations where
// an object has a context, and a descriptor that has events where the object
// has one for them.
type objects struct {
	t      testing.TB
	memory []byte
	used   int
}

func newObjects(t testing.TB) *objects {
	t.Helper()
	memory, err := syscall.Mmap(-1, 0, 1<<18, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Munmap(memory) })
	return &objects{t: t, memory: memory}
}

// events returns a descriptor that has an event for each of the calls that a
// test makes.
func (o *objects) events() int32 {
	fd, err := newSemaphore()
	require.Zero(o.t, err)
	o.t.Cleanup(func() { _ = syscall.Close(fd) })
	for range 2 {
		_, err := syscall.Write(fd, one)
		require.NoError(o.t, err)
	}
	return int32(fd)
}

// get returns an object of a type, and of no less than 16 KB.
func (o *objects) get(typ reflect.Type) reflect.Value {
	if typ == reflect.TypeFor[libibverbs.Context]() {
		v := o.get(reflect.TypeFor[libibverbs.VerbsContext]()).Interface().(*libibverbs.VerbsContext)
		*v = *tableVerbsContext()
		v.Context.AsyncFd = o.events()
		return reflect.ValueOf(&v.Context)
	}
	object := reflect.NewAt(typ, unsafe.Pointer(&o.memory[o.used]))
	o.used += 1 << 14
	switch c := object.Interface().(type) {
	case *librdmacm.EventChannel:
		c.Fd = o.events()
	case *librdmacm.CmId:
		c.Channel = o.get(reflect.TypeFor[librdmacm.EventChannel]()).Interface().(*librdmacm.EventChannel)
	}
	if typ.Kind() == reflect.Struct {
		for _, name := range []string{"Context", "Verbs"} {
			if field := object.Elem().FieldByName(name); field.IsValid() && field.Type() == reflect.TypeFor[*libibverbs.Context]() {
				field.Set(reflect.ValueOf(&tableVerbsContext().Context))
			}
		}
	}
	return object
}

// args returns an argument for each parameter of the bindings' function. No two
// are alike.
func (o *objects) args(stub reflect.Type) []reflect.Value {
	var args []reflect.Value
	for i := range stub.NumIn() {
		arg := reflect.New(stub.In(i)).Elem()
		switch {
		case arg.Kind() == reflect.Pointer:
			arg.Set(o.get(arg.Type().Elem()))
		case arg.Kind() == reflect.UnsafePointer:
			arg.SetPointer(o.get(reflect.TypeFor[byte]()).UnsafePointer())
		case arg.Kind() == reflect.String:
			arg.SetString("name")
		case arg.CanInt():
			arg.SetInt(int64(i + 1))
		default:
			arg.SetUint(uint64(i + 1))
		}
		args = append(args, arg)
	}
	return args
}

// call calls the bindings' function and returns its first result and its error.
func (e entry) call(args []reflect.Value) (reflect.Value, error) {
	results := e.stub.Call(args)
	err, _ := results[len(results)-1].Interface().(error)
	return results[0], err
}

// number returns what C knows a value by.
func number(v reflect.Value) any {
	switch {
	case v.Kind() == reflect.Pointer, v.Kind() == reflect.UnsafePointer:
		return uint64(v.Pointer())
	case v.CanInt():
		return uint64(v.Int())
	case v.CanUint():
		return v.Uint()
	}
	return v.Interface()
}

// classes without a way to fail.
var silent = []string{"void", "value"}

func TestNothingThere(t *testing.T) {
	values := map[string]uint64{"ibv_get_device_index": ^uint64(0)} // -1: not known
	for _, e := range entries(t) {
		t.Run(e.function, func(t *testing.T) {
			value, err := e.call(newObjects(t).args(e.stub.Type()))
			if !slices.Contains(silent, e.class) {
				require.ErrorIs(t, err, syscall.EOPNOTSUPP)
				return
			}
			require.NoError(t, err)
			if e.class == "value" {
				require.Equal(t, values[e.function], number(value))
			}
		})
	}
}

// takesEvent has the functions that wait for an event of their object.
var takesEvent = map[string]bool{"ibv_get_async_event": true, "rdma_get_cm_event": true, "rdma_get_request": true}

// Each function gets the arguments of its C function in order, and C's result
// and errno are made of what it returns.
func TestEveryFunction(t *testing.T) {
	for _, e := range entries(t) {
		t.Run(e.function, func(t *testing.T) {
			made := newObjects(t)
			want := e.answer(made)
			var got [][]reflect.Value
			results := want
			e.field.Set(reflect.MakeFunc(e.field.Type(), func(args []reflect.Value) []reflect.Value {
				got = append(got, args)
				return results
			}))
			t.Cleanup(func() { e.field.SetZero() })

			args := made.args(e.stub.Type())
			value, err := e.call(args)
			require.NoError(t, err)
			if takesEvent[e.function] { // the first call is without what the function fills
				require.Len(t, got, 2)
				require.Equal(t, number(args[0]), number(got[0][0]))
				require.True(t, got[0][1].IsNil())
				got = got[1:]
			}
			require.Len(t, got, 1)
			requireArgs(t, args, got[0])
			switch e.class {
			case "pointer", "value", "count", "negative", "wait":
				require.Equal(t, number(want[0]), number(value))
			case "void":
				return
			}
			if e.class == "value" {
				return
			}
			results = e.failure()
			_, err = e.call(args)
			require.ErrorIs(t, err, syscall.EINVAL)
		})
	}
}

// answer returns results of the function that mean success.
func (e entry) answer(made *objects) []reflect.Value {
	results := e.zero()
	switch e.class {
	case "pointer":
		if results[0].Kind() == reflect.UnsafePointer {
			results[0].SetPointer(made.get(reflect.TypeFor[byte]()).UnsafePointer())
		} else {
			results[0].Set(made.get(results[0].Type().Elem()))
		}
	case "count", "negative", "wait":
		results[0].SetInt(2)
	case "value":
		if results[0].CanInt() {
			results[0].SetInt(2)
		} else {
			results[0].SetUint(2)
		}
	}
	return results
}

// failure returns results that mean EINVAL.
func (e entry) failure() []reflect.Value {
	results := e.zero()
	results[len(results)-1].Set(reflect.ValueOf(syscall.EINVAL))
	if e.class == "rereg" {
		results[0].SetInt(int64(libibverbs.IBV_REREG_MR_ERR_INPUT))
	}
	return results
}

func (e entry) zero() []reflect.Value {
	var results []reflect.Value
	for i := range e.field.Type().NumOut() {
		results = append(results, reflect.New(e.field.Type().Out(i)).Elem())
	}
	return results
}

// requireArgs looks for the arguments of a call, in order, among those that the
// function got. Between them are the bindings' pointers to results.
func requireArgs(t *testing.T, args, got []reflect.Value) {
	t.Helper()
	for i, arg := range args {
		at := slices.IndexFunc(got, func(g reflect.Value) bool { return number(g) == number(arg) })
		require.GreaterOrEqual(t, at, 0, "argument %d is not among the function's", i)
		got = got[at+1:]
	}
}

// snapshot returns the functions of the newest headers.
func snapshot(t *testing.T) (functions []struct {
	Name    string
	Private bool
	Inline  *struct{}
},
) {
	t.Helper()
	names, err := filepath.Glob("../../../headers/api/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	text, err := os.ReadFile(slices.Max(names))
	require.NoError(t, err)
	var api struct {
		Functions []struct {
			Name    string
			Private bool
			Inline  *struct{}
		}
	}
	require.NoError(t, json.Unmarshal(text, &api))
	return api.Functions
}

func TestLookup(t *testing.T) {
	addresses := map[unsafe.Pointer]string{}
	for _, f := range snapshot(t) {
		address := Lookup(f.Name)
		if f.Inline != nil || f.Private {
			require.Nil(t, address, f.Name)
			continue
		}
		require.NotNil(t, address, f.Name)
		require.Empty(t, addresses[address], f.Name)
		addresses[address] = f.Name
	}
	require.Greater(t, len(addresses), 150)
	require.Nil(t, Lookup("getpid"))
}

func TestTables(t *testing.T) {
	without := map[string]bool{
		"ABIPlaceholder2": true, "ABIPlaceholder1": true, "Priv": true, "CqContext": true, "AbiCompat": true,
	}
	functions := 0
	for _, table := range []any{*tableVerbsContext(), tableVerbsContext().Context.Ops, *tableQpEx(), *tableCqEx()} {
		v := reflect.ValueOf(table)
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			old := strings.HasPrefix(name, "Compat") && name != "CompatQueryDevice" && name != "CompatQueryPort"
			if v.Field(i).Kind() != reflect.UnsafePointer || without[name] || old {
				continue
			}
			functions++
			require.NotNil(t, v.Field(i).UnsafePointer(), "%s of %T", name, table)
		}
	}
	require.Greater(t, functions, 80)
	require.EqualValues(t, unsafe.Sizeof(libibverbs.VerbsContext{}), tableVerbsContext().Sz)
	require.EqualValues(t, ^uintptr(0), uintptr(tableVerbsContext().Context.AbiCompat))
}

// An older program's query has the operation fill a shorter struct.
func TestQueryPortOfOldPrograms(t *testing.T) {
	entries(t)
	const size = unsafe.Offsetof(libibverbs.PortAttr{}.PortCapFlags2)
	verbs.QueryPort = func(_ *libibverbs.Context, port uint8, attr *libibverbs.PortAttr, n uint64) syscall.Errno {
		require.EqualValues(t, 7, port)
		require.EqualValues(t, size, n)
		attr.Lid = 9
		return 0
	}
	context := tableVerbsContext().Context // of a driver that is too old for the operation
	context.AbiCompat = nil
	var attr libibverbs.PortAttr
	require.NoError(t, libibverbs.QueryPort(&context, 7, &attr))
	require.EqualValues(t, 9, attr.Lid)
	require.EqualValues(t, 48, size)
}

func TestStrings(t *testing.T) {
	tests := map[string]func() (string, error){
		"transport retry counter exceeded": func() (string, error) { return libibverbs.WcStatusStr(libibverbs.IBV_WC_RETRY_EXC_ERR) },
		"unknown":                          func() (string, error) { return libibverbs.WcStatusStr(1000) },
		"usNIC":                            func() (string, error) { return libibverbs.NodeTypeStr(libibverbs.IBV_NODE_USNIC) },
		"active":                           func() (string, error) { return libibverbs.PortStateStr(libibverbs.IBV_PORT_ACTIVE) },
		"SRQ limit reached":                func() (string, error) { return libibverbs.EventTypeStr(libibverbs.IBV_EVENT_SRQ_LIMIT_REACHED) },
		"RDMA_CM_EVENT_REJECTED":           func() (string, error) { return librdmacm.EventStr(librdmacm.RDMA_CM_EVENT_REJECTED) },
		"UNKNOWN EVENT":                    func() (string, error) { return librdmacm.EventStr(librdmacm.RDMA_CM_EVENT_USER) },
		"soft0": func() (string, error) {
			var device libibverbs.Device
			copy(device.Name[:], "soft0")
			return libibverbs.GetDeviceName(&device)
		},
	}
	for want, get := range tests {
		got, err := get()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// The numbers are libibverbs': mult is -1 where it knows none.
func TestRates(t *testing.T) {
	rates := map[libibverbs.Rate]struct{ mult, mbps int32 }{
		libibverbs.IBV_RATE_2_5_GBPS: {1, 2500}, libibverbs.IBV_RATE_10_GBPS: {4, 10000}, libibverbs.IBV_RATE_30_GBPS: {12, 30000},
		libibverbs.IBV_RATE_5_GBPS: {2, 5000}, libibverbs.IBV_RATE_20_GBPS: {8, 20000}, libibverbs.IBV_RATE_40_GBPS: {16, 40000},
		libibverbs.IBV_RATE_60_GBPS: {24, 60000}, libibverbs.IBV_RATE_80_GBPS: {32, 80000}, libibverbs.IBV_RATE_120_GBPS: {48, 120000},
		libibverbs.IBV_RATE_14_GBPS: {-1, 14062}, libibverbs.IBV_RATE_56_GBPS: {-1, 56250}, libibverbs.IBV_RATE_112_GBPS: {-1, 112500},
		libibverbs.IBV_RATE_168_GBPS: {-1, 168750}, libibverbs.IBV_RATE_25_GBPS: {-1, 25781}, libibverbs.IBV_RATE_100_GBPS: {-1, 103125},
		libibverbs.IBV_RATE_200_GBPS: {-1, 206250}, libibverbs.IBV_RATE_300_GBPS: {-1, 309375}, libibverbs.IBV_RATE_28_GBPS: {11, 28125},
		libibverbs.IBV_RATE_50_GBPS: {20, 53125}, libibverbs.IBV_RATE_400_GBPS: {160, 425000}, libibverbs.IBV_RATE_600_GBPS: {240, 637500},
		libibverbs.IBV_RATE_800_GBPS: {320, 850000}, libibverbs.IBV_RATE_1200_GBPS: {480, 1275000},
	}
	for rate := range libibverbs.Rate(40) {
		want, known := rates[rate]
		if !known {
			want.mult, want.mbps = -1, -1
		}
		mult, err := libibverbs.RateToMult(rate)
		require.NoError(t, err)
		require.Equal(t, want.mult, mult, rate)
		mbps, err := libibverbs.RateToMbps(rate)
		require.NoError(t, err)
		require.Equal(t, want.mbps, mbps, rate)
		if known {
			back, err := libibverbs.MbpsToIbvRate(mbps)
			require.NoError(t, err)
			require.Equal(t, rate, back)
		}
		if want.mult > 0 {
			back, err := libibverbs.MultToIbvRate(mult)
			require.NoError(t, err)
			require.Equal(t, rate, back)
		}
	}
	for _, unknown := range []int32{-1, 0, 3} {
		rate, err := libibverbs.MultToIbvRate(unknown)
		require.NoError(t, err)
		require.Equal(t, libibverbs.IBV_RATE_MAX, rate)
		rate, err = libibverbs.MbpsToIbvRate(unknown)
		require.NoError(t, err)
		require.Equal(t, libibverbs.IBV_RATE_MAX, rate)
	}
}

// grow makes the goroutine's stack move.
//
//go:noinline
func grow(n int) byte {
	var block [1024]byte
	if n > 0 {
		block[n%1024] = grow(n - 1)
	}
	return block[n%1024]
}

// What C gets of a Go caller stays where it is, although C calls Go, which may
// move the caller's stack.
func TestCallerStackMoves(t *testing.T) {
	entries(t)
	verbs.QueryDevice = func(_ *libibverbs.Context, attr *libibverbs.DeviceAttr) syscall.Errno {
		grow(1000)
		attr.MaxQp = 123
		return 0
	}
	verbs.GetPkeyIndex = func(*libibverbs.Context, uint8, libibverbs.Be16) (int, syscall.Errno) {
		grow(1000)
		return 5, 0
	}
	verbs.QueryPkey = func(_ *libibverbs.Context, _ uint8, _ int32, pkey *libibverbs.Be16) syscall.Errno {
		grow(1000)
		*pkey = 77
		return 0
	}
	context := &tableVerbsContext().Context
	type result struct {
		maxQP, index int
		pkey         libibverbs.Be16
	}
	done := make(chan result)
	go func() { // a new stack is small
		var attr libibverbs.DeviceAttr
		_ = libibverbs.QueryDevice(context, &attr)
		index, _ := libibverbs.GetPkeyIndex(context, 1, 0)
		done <- result{int(attr.MaxQp), index, 0}
	}()
	require.Equal(t, result{123, 5, 0}, <-done)
	go func() {
		pkey, _ := libibverbs.QueryPkey(context, 1, 0)
		done <- result{0, 0, pkey}
	}()
	require.Equal(t, result{0, 0, 77}, <-done)
}
