// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package calls

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
	cm "github.com/verbena-go/verbena/generated/librdmacm"
)

// address is what C has as the result of a function that returns a pointer.
func address(p unsafe.Pointer) int64 { return int64(uintptr(p)) }

// pointer: NULL with errno.
func TestNull(t *testing.T) {
	requireReadings(t, []reading{
		{"ibv_alloc_pd", 0, enomem, nil, syscall.ENOMEM, "ibv_alloc_pd: cannot allocate memory: verbena doctor says more"},
		{"ibv_alloc_pd", 0, -enomem, nil, syscall.ENOMEM, "ibv_alloc_pd: cannot allocate memory: verbena doctor says more"},
		{"ibv_alloc_pd", 0, 0, nil, syscall.EIO, "ibv_alloc_pd: input/output error"},
		{"ibv_open_device", 0, int32(syscall.EACCES), nil, syscall.EACCES, "ibv_open_device: permission denied: no access to /dev/infiniband; verbena doctor says more"},
		{"ibv_alloc_null_mr", 0, eopnotsupp, nil, syscall.EOPNOTSUPP, "ibv_alloc_null_mr: operation not supported"},
	})
}

func TestPointer(t *testing.T) {
	l := library(t, "ibv_open_device")
	o := l.Object("ibv_open_device")
	l.Returns(address(o), enodev) // errno says nothing then
	context, err := verbs.OpenDevice((*verbs.Device)(o))
	require.NoError(t, err)
	require.Equal(t, o, unsafe.Pointer(context))
}

// interior: a pointer into the argument, or NULL without errno.
func TestInterior(t *testing.T) {
	l := library(t, "ibv_qp_to_qp_ex")
	o := l.Object("ibv_qp_to_qp_ex")
	l.Returns(address(o), enodev)
	ex, err := verbs.QpToQpEx((*verbs.Qp)(o))
	require.NoError(t, err)
	require.Equal(t, o, unsafe.Pointer(ex))

	l.Returns(0, enodev)
	ex, err = verbs.QpToQpEx((*verbs.Qp)(o))
	require.NoError(t, err, "NULL is an answer: the queue pair was made without its extension")
	require.Nil(t, ex)
}

// string: a text of C's, which is copied.
func TestString(t *testing.T) {
	l := library(t, "ibv_get_device_name")
	o := l.Object("ibv_get_device_name")
	text := []byte("rxe0\x00")
	c := unsafe.Slice((*byte)(o), len(text))
	copy(c, text)
	l.Returns(address(o), enodev)
	name, err := verbs.GetDeviceName((*verbs.Device)(o))
	require.NoError(t, err)
	require.Equal(t, "rxe0", name)
	clear(c)
	require.Equal(t, "rxe0", name, "it is a copy")

	l.Returns(0, 0)
	name, err = verbs.GetDeviceName((*verbs.Device)(o))
	require.NoError(t, err, "NULL is an empty text")
	require.Empty(t, name)
}

// Out parameters are results of calls that succeed. What C has written before
// it failed is not returned.
func TestOut(t *testing.T) {
	o := library(t, "rdma_create_id").Object("rdma_create_id")
	for _, tt := range []struct {
		function     string
		index, bytes int // of C's parameter
		written      int64
		success      int64 // C's result
		failure      int64
		call         func() (any, error)
		want         any
	}{
		{"rdma_create_id", 1, 8, address(o), 0, -1, func() (any, error) {
			return value(cm.CreateId(nil, nil, cm.RDMA_PS_TCP))
		}, (*cm.CmId)(o)},
		{"rdma_init_qp_attr", 2, 4, -3, 0, -1, func() (any, error) {
			return value(cm.InitQpAttr((*cm.CmId)(o), (*verbs.QpAttr)(o)))
		}, verbs.QpAttrMask(0xfffffffd)},
		{"rdma_get_cm_event", 1, 8, address(o), 0, -1, func() (any, error) {
			return value(cm.GetCmEvent((*cm.EventChannel)(o)))
		}, (*cm.CmEvent)(o)},
		{"rdma_getaddrinfo", 3, 8, address(o), 0, -1, func() (any, error) {
			return value(cm.Getaddrinfo("peer", "", nil))
		}, (*cm.Addrinfo)(o)},
		{"rdma_get_devices", 0, 4, 2, address(o), 0, func() (any, error) {
			_, n, err := cm.GetDevices()
			return n, err
		}, int32(2)},
		{"ibv_query_pkey", 3, 2, 0xffff, 0, -1, func() (any, error) {
			return value(verbs.QueryPkey((*verbs.Context)(o), 1, 0))
		}, verbs.Be16(0xffff)},
		{"ibv_resolve_eth_l2_from_gid", 3, 2, 5, 0, -int64(einval), func() (any, error) {
			_, vid, err := verbs.ResolveEthL2FromGid((*verbs.Context)(o), (*verbs.AhAttr)(o), (*uint8)(o))
			return vid, err
		}, uint16(5)},
		{"ibv_query_port_speed", 2, 8, 1000, 0, int64(einval), func() (any, error) {
			return value(verbs.QueryPortSpeed((*verbs.Context)(o), 1))
		}, uint64(1000)},
		{"ibv_alloc_buf", 2, 8, address(o), address(o), 0, func() (any, error) {
			_, buf, err := verbs.AllocBuf((*verbs.Pd)(o), 64)
			return buf, err
		}, (*verbs.Buf)(o)},
	} {
		t.Run(tt.function, func(t *testing.T) {
			l := library(t, tt.function)
			l.Returns(tt.success, 0)
			l.Writes(tt.index, tt.bytes, tt.written)
			got, err := tt.call()
			require.NoError(t, err)
			require.Equal(t, tt.want, got)

			l.Returns(tt.failure, einval)
			l.Writes(tt.index, tt.bytes, tt.written)
			got, err = tt.call()
			require.ErrorIs(t, err, syscall.EINVAL)
			requireZero(t, got)
		})
	}
}
