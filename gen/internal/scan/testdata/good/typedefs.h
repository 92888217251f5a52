typedef uint64_t ibv_address_t;
typedef unsigned short ibv_port_t[4];
typedef void *ibv_handle_t;
typedef struct kept kept_t;
typedef struct tagged { int a; ibv_port_t ports; } tagged_t, *tagged_ptr;
typedef struct { ibv_address_t at; const ibv_handle_t handle; } bare_t;
typedef union { int i; bare_t b; } bare_union;
typedef enum { SHADE_DARK, SHADE_LIGHT = 7 } shade_t;
typedef enum tone { TONE_LOW = -1, TONE_HIGH } tone_t;
typedef int ibv_callback(shade_t shade, void *context);
typedef void (*ibv_done)(ibv_callback *first, const tagged_t *t);
typedef ibv_address_t ibv_second_t;
typedef struct same same;
struct same { same *next; };

struct uses {
	ibv_address_t address;
	ibv_port_t rows[2];
	bare_t bare[3];
	shade_t shade;
	tone_t tone;
	ibv_done done;
	ibv_callback *callback;
	const tagged_ptr tagged;
	same *list;
};

ibv_callback ibv_called;
ibv_address_t ibv_typed(ibv_handle_t handle, kept_t *kept, const bare_t *bare, shade_t shade, ibv_port_t ports, ibv_callback callback);
