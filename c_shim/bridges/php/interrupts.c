/* Asks PHP, from any thread, to come by between two instructions: at the end of a loop's turn or at the begin of a function.
 *
 * PHP calls a hook then, if a flag in the interpreter's globals is set. The flag is in another place in every version, so the table
 * has versions, and the size of the globals, which their symbol tells, must be right as well. */
#include "kit/symbols.h"
#include "php.h"

#include <stdatomic.h>
#include <string.h>

/* By scripts/php-interrupts. */
static const struct {
    const char *engine;
    size_t executor_bytes, flag;
} versions[] = {
    {"3.4", 1664, 546}, /* PHP 7.4.33 */
    {"4.2", 1800, 546}, /* PHP 8.2.36 */
    {"4.4", 1984, 550}, /* PHP 8.4.27 */
    {"4.5", 1984, 574}, /* PHP 8.5.7 */
    {"4.6", 2200, 574}, /* PHP 8.6.0RC3 */
};

static const struct php_symbols *php;
static void (*next)(zend_execute_data *);
static _Atomic(bool) *flag;

static void interrupted(zend_execute_data *frame)
{
    php_come_by();
    if (next != NULL)
        next(frame);
}

void php_interrupts_prepare(const struct php_symbols *symbols)
{
    static const char prefix[] = "Zend Engine v";
    uintptr_t start, end;
    php = symbols;
    const char *engine = php->version();
    if (strncmp(engine, prefix, sizeof prefix - 1) != 0 || !symbols_extent_of(php->executor, &start, &end))
        return;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
        if (strncmp(engine + sizeof prefix - 1, versions[i].engine, strlen(versions[i].engine)) == 0 &&
            end - start == versions[i].executor_bytes)
            flag = (_Atomic(bool) *)(php->executor + versions[i].flag);
}

void php_interrupt(void)
{
    if (flag == NULL)
        return;
    if (*php->interrupt_hook != interrupted) {
        next = *php->interrupt_hook;
        *php->interrupt_hook = interrupted;
    }
    atomic_store(flag, true);
}
