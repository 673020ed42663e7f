/* The allocation buffer that the main thread has when the JVM begins to sample.
 *
 * A thread allocates from its own buffer of up to 2 MB by moving a pointer. To sample, the JVM ends the buffer early, at the next
 * sample point. It chooses that point in its slow path, so a buffer from before sampling has none, and everything that the
 * main thread allocates from it would be missing. jvm_buffer_begin therefore takes the slow path once, with an array that is one
 * header too large for the rest of the buffer: the JVM allocates the array elsewhere, keeps the buffer, and chooses a sample
 * point in it. The array is garbage at once.
 *
 * Buffers of other threads stay as they are: only their own threads could do the same. */
#define _GNU_SOURCE
#include "buffer.h"
#include "layout.h"

#include <dlfcn.h>

enum { JNI_EXCEPTION_CLEAR = 17, JNI_GET_OBJECT_CLASS = 31, JNI_GET_FIELD_ID = 94, JNI_GET_LONG_FIELD = 101, JNI_NEW_BYTE_ARRAY = 176 };
/* Only options make larger buffers. */
#define MOST_BYTES (INT64_C(4) << 20)

static _Thread_local bool is_beginning;

bool jvm_buffer_is_beginning(void)
{
    return is_beginning;
}

/* java.lang.Thread has the address of the JVM's own thread in a field. */
uintptr_t jvm_thread_address(environment jni, void *thread)
{
    void *class = ((void *(*)(environment, void *))(*jni)[JNI_GET_OBJECT_CLASS])(jni, thread);
    void *field = ((void *(*)(environment, void *, const char *, const char *))(*jni)[JNI_GET_FIELD_ID])(jni, class, "eetop", "J");
    int64_t address = 0;
    if (field != NULL)
        address = ((int64_t(*)(environment, void *, void *))(*jni)[JNI_GET_LONG_FIELD])(jni, thread, field);
    else
        ((void (*)(environment))(*jni)[JNI_EXCEPTION_CLEAR])(jni);
    CALL(jni, JNI_DELETE_LOCAL_REF, (environment, void *), jni, class);
    return (uintptr_t)address;
}

bool jvm_find_distance_of_jni(environment jvmti, environment jni, uintptr_t *distance)
{
    void *thread = NULL;
    if (CALL(jvmti, GET_CURRENT_THREAD, (environment, void **), jvmti, &thread) != 0 || thread == NULL)
        return false;
    uintptr_t address = jvm_thread_address(jni, thread);
    CALL(jni, JNI_DELETE_LOCAL_REF, (environment, void *), jni, thread);
    *distance = (uintptr_t)jni - address;
    return address != 0 && *distance < 4096;
}

/* Bytes left in the thread's buffer. */
static int64_t bytes_left(uintptr_t thread, const int64_t layout[JVM_FIELDS])
{
    uintptr_t buffer = thread + (uintptr_t)layout[THREAD_BUFFER];
    uintptr_t top = *(const uintptr_t *)(buffer + (uintptr_t)layout[BUFFER_TOP]);
    uintptr_t end = *(const uintptr_t *)(buffer + (uintptr_t)layout[BUFFER_END]);
    return (int64_t)(end - top);
}

void jvm_buffer_begin(environment jni, void *thread)
{
    int64_t layout[JVM_FIELDS];
    void *library = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return;
    (void)jvm_layout_read(library, layout);
    dlclose(library);
    if (layout[THREAD_BUFFER] == JVM_HAS_NO || layout[BUFFER_TOP] == JVM_HAS_NO || layout[BUFFER_END] == JVM_HAS_NO)
        return;
    shim_mute();
    uintptr_t address = jvm_thread_address(jni, thread);
    int64_t bytes = address == 0 ? 0 : bytes_left(address, layout);
    if (bytes > 0 && bytes <= MOST_BYTES) {
        is_beginning = true;
        void *array = ((void *(*)(environment, int32_t))(*jni)[JNI_NEW_BYTE_ARRAY])(jni, (int32_t)bytes);
        is_beginning = false;
        if (array == NULL)
            ((void (*)(environment))(*jni)[JNI_EXCEPTION_CLEAR])(jni);
        else
            CALL(jni, JNI_DELETE_LOCAL_REF, (environment, void *), jni, array);
    }
    shim_unmute();
}
